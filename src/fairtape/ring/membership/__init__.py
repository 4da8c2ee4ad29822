"""Formations of a loop: layout, history, reconfiguration, topology, hierarchy, secondary loops. Pure."""
