"""Spark sessions and Delta tables: Java, class archive, session options, commits."""
