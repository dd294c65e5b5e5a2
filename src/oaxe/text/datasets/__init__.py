"""Data sets by name: catalogue, then the folder with the files, then downloads and archives."""
