"""Work on one machine: operations, steps and jobs, devices, worker processes, and the entry of every
command.
"""
