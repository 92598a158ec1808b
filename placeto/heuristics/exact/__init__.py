"""The optimum of small problems, by constraint programming (OR-tools).

In comes a problem; out goes a placement with a proof, or the best that was found until the time was up.
"""
