"""An exchange on this machine: it speaks Binance's REST and WebSocket, plays a market, and fails on purpose."""
