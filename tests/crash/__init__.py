"""The real process under sudden death: load, reading, audit. `python -m tests.crash --kills 300 --seed 1`."""
