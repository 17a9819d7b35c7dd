"""Audits of runs over several devices, processes and executors.

Each starts processes of its own: JAX fixes its devices when it starts, and Spark starts
Java. They take too long for `demur audit --quick`, and are part of `demur audit`.
"""
