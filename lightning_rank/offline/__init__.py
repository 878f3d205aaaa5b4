"""Rankers judged from files: runs against judgements, and runs against one another."""
