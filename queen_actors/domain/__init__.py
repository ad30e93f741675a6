"""Pure, synchronous state machines: no clock, no ids, no randomness, no I/O; `now` and ids are arguments.

`decide` reads state, changes nothing, and returns a reply and effects; `apply` is the only mutation, used live and
at recovery, so recovery is replay.
"""
