"""From a trained model and text to translations."""
