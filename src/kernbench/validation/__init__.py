"""How far the model is from measured hardware: sets of public measurements, and drivers that simulate the same.

One file for each set: it reads the inputs of its cases, names the machine, and drives it. What was measured is read
apart (`contract.py`) and never reaches a driver.
"""
