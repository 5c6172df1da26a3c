"""Conversations: the transcript, the masking of coins and dates, the budget, the memory."""
