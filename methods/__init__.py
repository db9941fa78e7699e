"""What is compared: recipes, and the parts they are made of."""
