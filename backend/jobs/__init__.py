"""Jobs: commands of the program that run in processes of their own, one after the other, whatever program submitted
them."""
