"""The compiled step of the exchange: fills, matching, margin and liquidation for N accounts and S symbols."""
