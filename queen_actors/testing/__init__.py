"""For tests of programs that use the broker, and of the broker itself: virtual time, seeded schedules, a simulator."""
