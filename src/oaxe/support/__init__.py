"""What every room uses: configuration, errors, files, pages."""
