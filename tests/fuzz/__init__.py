"""Inputs that nobody would send, against the real server and against every decoder (I17)."""
