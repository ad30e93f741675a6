"""Actors on Trio: each partition, queue, lock, namespace and queue's timers owns its state and takes one command at a
time.

A command is one synchronous turn on the Trio thread: decide, hand the effects to the log, apply them. Nothing can come
between, so an idle actor needs no task, no channel and no mailbox; who has to wait for its turn waits in `Turns`.
"""
