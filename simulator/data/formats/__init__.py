"""Files of bars and funding as other programs write them: Binance Vision, CryptoDataDownload, freqtrade, any CSV."""
