"""What methods are compared on."""
