"""The paper, reproduced: python -m reproduction --help."""
