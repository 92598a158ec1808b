"""Recipes, tables and benchmarks of Placeto."""
