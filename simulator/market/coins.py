"""Tickers and names of coins: to tell whom a headline is about, and to hide it.

The list is ours. It need not be complete: what it lacks is treated as a name that is not known.
"""

from __future__ import annotations

# TICKER Name|other name, the name that headlines use most often first.
_LISTED = """
1INCH 1inch; AAVE Aave; ADA Cardano; AGIX SingularityNET; AKT Akash; ALGO Algorand; ALICE My Neighbor Alice;
ALPHA Stella; AMP Amp; ANKR Ankr; APE ApeCoin|Apecoin; API3 API3; APT Aptos; AR Arweave; ARB Arbitrum; ASTR Astar;
ATOM Cosmos; AUDIO Audius; AVAX Avalanche; AXS Axie Infinity|Axie; BAL Balancer; BAND Band Protocol;
BAT Basic Attention Token; BCH Bitcoin Cash; BEAM Beam; BGB Bitget Token; BLUR Blur;
BNB Binance Coin|Build and Build; BNX BinaryX; BONK Bonk; BONE ShibaSwap; BSV Bitcoin SV|Bitcoin Satoshi Vision;
BTC Bitcoin|XBT; BTG Bitcoin Gold; BTT BitTorrent; BUSD Binance USD; CAKE PancakeSwap; CELO Celo; CEL Celsius;
CFX Conflux; CHZ Chiliz; CKB Nervos; COMP Compound; CRO Cronos; CRV Curve; CVX Convex; DAI Dai; DASH Dash;
DCR Decred; DOGE Dogecoin; DOT Polkadot; DYDX dYdX; EGLD MultiversX|Elrond; ELON Dogelon Mars|Dogelon; ENA Ethena;
ENJ Enjin; ENS Ethereum Name Service; EOS EOS; ETC Ethereum Classic; ETH Ethereum|Ether; ETHW EthereumPoW;
ETHFI Ether.fi; FET Fetch.ai|Fetch; FIL Filecoin; FLOKI Floki|Floki Inu; FLOW Flow; FLR Flare; FTM Fantom;
FTT FTX Token; FXS Frax; GALA Gala; GLM Golem; GLMR Moonbeam; GMT STEPN; GMX GMX; GNO Gnosis; GRT The Graph;
GUSD Gemini Dollar; HBAR Hedera; HNT Helium; HOT Holo; HT Huobi Token; ICP Internet Computer; ICX ICON; ILV Illuvium;
IMX Immutable|ImmutableX; INJ Injective; IOTA IOTA; IOTX IoTeX; JASMY JasmyCoin; JTO Jito; JUP Jupiter; KAS Kaspa;
KAVA Kava; KCS KuCoin Token; KDA Kadena; KLAY Klaytn; KNC Kyber|KyberSwap; KSM Kusama; LDO Lido; LEO UNUS SED LEO;
LINK Chainlink; LPT Livepeer; LRC Loopring; LTC Litecoin; LUNA Terra|Terra Luna; LUNC Terra Classic;
MANA Decentraland; MASK Mask Network; MATIC Polygon; MINA Mina; MIOTA Iota; MKR Maker|MakerDAO; MNT Mantle;
NEAR Near Protocol; NEO Neo; NEXO Nexo; NOT Notcoin; OCEAN Ocean Protocol; OKB OKB; OMG OMG Network; ONDO Ondo;
ONE Harmony; ONT Ontology; OP Optimism; ORDI Ordi; OSMO Osmosis; PAXG PAX Gold; PENDLE Pendle; PEPE Pepe|Pepecoin;
PERP Perpetual Protocol; POL Polygon Ecosystem; PYTH Pyth; PYUSD PayPal USD; QNT Quant; QTUM Qtum; QUICK QuickSwap;
RAY Raydium; REN Ren; RNDR Render; RON Ronin; ROSE Oasis; RPL Rocket Pool; RUNE THORChain|Thorchain; RVN Ravencoin;
SAFEMOON SafeMoon|Safemoon; SAND The Sandbox; SC Siacoin; SEI Sei; SHIB Shiba Inu|Shiba; SKL SKALE;
SLP Smooth Love Potion; SNX Synthetix; SOL Solana; SPELL Spell; SRM Serum; STETH Lido Staked Ether; STORJ Storj;
STRK Starknet; STX Stacks; SUI Sui; SUSHI SushiSwap|Sushi; SXP Solar; TFUEL Theta Fuel; THETA Theta; TIA Celestia;
TON Toncoin|The Open Network; TRX Tron; TUSD TrueUSD; TWT Trust Wallet; UMA UMA; UNI Uniswap; USDC USD Coin;
USDD Decentralized USD; USDT Tether; USDP Pax Dollar; UST TerraUSD; USTC TerraClassicUSD; VET VeChain|Vechain;
VGX Voyager; VRA Verasity; WAVES Waves; WBTC Wrapped Bitcoin; WIF dogwifhat; WLD Worldcoin; WOO WOO Network;
XDC XDC Network; XEC eCash; XEM NEM; XLM Stellar Lumens|Stellar; XMR Monero; XNO Nano; XRP Ripple|XRP Ledger;
XTZ Tezos; XVS Venus; YFI Yearn|Yearn.finance; ZEC Zcash; ZEN Horizen; ZIL Zilliqa; ZRX 0x
"""


def _parsed() -> dict[str, tuple[str, ...]]:
    coins: dict[str, tuple[str, ...]] = {}
    for entry in " ".join(_LISTED.split()).split(";"):
        ticker, names = entry.strip().split(" ", 1)
        coins[ticker] = (*coins.get(ticker, ()), *names.split("|"))
    return coins


COINS = _parsed()  # the ticker of a coin, and its names
QUOTES = ("USDT", "USDC", "BUSD", "USD")


def base_coin(symbol: str) -> str:
    """The coin of a symbol: BTC of BTCUSDT, and of BTC/USDT and BTC/USDT:USDT as ccxt writes them."""
    if "/" in symbol:
        return symbol.partition("/")[0] or symbol
    for quote in QUOTES:
        if symbol.endswith(quote) and symbol != quote:
            return symbol.removesuffix(quote)
    return symbol
