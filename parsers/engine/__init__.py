"""How lines are found and read, whatever program wrote them."""
