"""Names and phrases that a masked headline may not show although their words are ordinary English.

Our own lists. They need not be complete: a capitalised word that is no ordinary English is replaced without them.
"""

from __future__ import annotations

# Given names. The capitalised word after one is taken for the family name.
_GIVEN = """
aaron abdul adam adrian ahmed alan albert alejandro alex alexander alexandra alexei ali alice alicia alison allen
amanda amy ana anatoly andre andrea andreas andrei andrew andy angela ann anna anne anthony anton antonio arjun arthur
ashley austin barbara barry ben benjamin bernard beth bob boris brad brandon brendan brett brian bruce bruno bryan
carl carla carlos carol caroline catherine cathie chad charles charlie chen chris christian christina christine
christopher cindy claire clara colin connor craig cynthia damian dan daniel daniela danny darren dave david dean
deborah dennis derek diana diego dimitri dmitry don donald donna doug douglas duncan dylan ed eddie edgar eduardo
edward elaine elena eli elias elizabeth ella ellen elon emily emma emmanuel eric erica erik erin ethan eugene eva evan
fabio felix fernando fiona francis francisco frank fred frederick gabriel gareth gary gavin geoff george gerald gina
giovanni glen glenn gordon graham greg gregory guido gustavo guy hannah hans harold harry heather hector heidi helen
henry hester howard hugh hugo ian igor isaac isabel ivan jack jackson jacob jake jamal james jamie jan jane janet
jared jason javier jay jean jed jeff jeffrey jennifer jenny jeremy jerome jerry jesse jessica jihan jim jimmy joan joe
joel john johnny jon jonathan jorge jose joseph josh joshua juan julia julian julie jun justin karen karl kate
katherine kathy katie keith kelly ken kenneth kevin kim kirsten kristin kurt kyle larry laura lauren laurence leah lee
leo leon leonard leonardo lewis li linda lisa liz logan lorenzo louis lucas lucy luis luke lynn manuel marc marco
marcus margaret maria marie mario mark marshall martha martin marty mary mason matt matteo matthew maurice max maya
megan melissa michael michel michelle miguel mike miles mohammed monica nancy naomi natalie nathan neil nicholas nick
nicolas nicole nigel nina noah noel nora oleg oliver olivia omar oscar pablo pamela pascal pat patricia patrick paul
paula paulo pavel pedro peter phil philip philippe pierre rachel rafael raj ralph ramon randy raoul raphael ray
raymond rebecca ricardo richard rick rob robert roberto robin rodrigo roger roman ron ronald rory rosa ross roy
russell ruth ryan sally sam samantha samson samuel sandra sara sarah satoshi scott sean sebastian sergei sergey sergio
seth shane sharon shawn simon sofia sonia sophia sophie stacy stanley stefan stephanie stephen steve steven stuart su
susan suzanne sven sylvia tara taylor ted teresa terry theo theresa thomas tim timothy tina tobias todd tom tommy tony
tracy trevor tyler valentin valeria vanessa vera veronica victor victoria vikram vincent virgil vitalik vivek vladimir
walter wang warren wayne wei wendy wesley willy xavier yan yuri yves zach zachary zane zhao zoe
"""
GIVEN = frozenset(_GIVEN.split())

# Names of several words that may all be ordinary English, written as headlines write them.
_PHRASES = """
Abu Dhabi|Akash Network|Alien Worlds|American Express|Ark Invest|Art Hayes|Axie Infinity|Bad Bunny|Bain Capital|
Band Protocol|Bank for International Settlements|Bank of America|Bank of Canada|Bank of China|Bank of England|
Bank of Israel|Bank of Japan|Bank of Korea|Bank of New York|Bank of Russia|Base Chain|Base Layer 2|Base Network|
Benjamin Cowen|Beyond Finance|Big Tech Giants|Big Time|Bill Ackman|Bill Gates|Bill Hughes|Bill Miller|
Binance Smart Chain|Bitcoin Cash|Bitcoin Magazine|Bitcoin Pizza Day|Bitcoin Trust|Black Rock|Block Inc|Blockchain.com|
Bored Ape|Bored Ape Yacht Club|Bored Apes|Brave New Coin|Business Insider|Business Today|Cape Town|Capital One|
Capo of Crypto|Cash App|Cathie Wood|Central African Republic|Champions League|Chips Act|Choke Point|Cipher Mining|
City Hall|Clarity Act|Commodity Futures Trading Commission|Compass Mining|Consensus 2022|Core Foundation|
Core Scientific|Costa Rica|Credible Crypto|Credit Suisse|Crypto News|Crypto Potato|Crypto.com|Daily Hodl|Daily Mail|
DeFi Technologies|Department of Justice|Deutsche Bank|Digital Asset Holdings|Digital Currency Group|
Digital Large Cap Fund|Do Kwon|Economic Times|El Salvador|Electric Capital|Elon Musk|European Central Bank|
European Commission|European Parliament|European Union|Federal Reserve|Fetch AI|Financial Action Task Force|
Financial Conduct Authority|Financial Services Agency|Financial Times|First Citizens|First Digital|First Republic|
First Trust|Formula 1|Formula One|Fox Business|Framework Ventures|Free Ross|Friend.tech|Galaxy Digital|
Game of Thrones|General Catalyst|Genius Act|Global X|Gods Unchained|Goldman Sachs|Grayscale Bitcoin Trust|
Green Satoshi Token|Hamas War|Hidden Road|Hive Blockchain|Hong Kong|House Financial Services Committee|House of Lords|
House of Representatives|Hut 8|Ice Poseidon|Immutable X|Inflation Reduction Act|Infrastructure Act|
Infrastructure Bill|Interactive Brokers|Internal Revenue Service|International Monetary Fund|Internet Computer|
Ivory Coast|Jack Dorsey|Jack Ma|Jane Street|Joe Rogan|Jump Crypto|Jump Trading|Justice Department|Kim Kardashian|
Larry Fink|Las Vegas|Latin America|Lightning Network|Liquid Network|Los Angeles|Magic Eden|Main Street|Major League|
Make America Great Again|Man City|Man United|Marathon Digital|Mark Cuban|Markets in Crypto Assets|
Markets in Crypto-Assets|Mask Network|Meta Platforms|Michael Burry|Middle East|Millennium Management|Moon Birds|
Morgan Stanley|Motley Fool|Mt Gox|Mt. Gox|Mutant Ape|My Neighbor Alice|Near Protocol|New Delhi|New Hampshire|
New Jersey|New Mexico|New York|New York Times|New Zealand|Nobel Prize|North America|North Carolina|North Dakota|
North Korea|Ocean Protocol|Olympic Games|Open Sea|Operation Choke Point|Ordinal Inscriptions|Other Deed|Otherside|
Oval Office|Papua New Guinea|Paris Hilton|Patriot Act|Perpetual Protocol|Peter Brandt|Pixel Vault|Pizza Day|Plan B|
PlanB|Play to Earn Summit|Poly Network|Premier League|Prime Trust|Puerto Rico|Pump.fun|Real Madrid|Red Bull|Red Cross|
Regulation by Enforcement Act|Render Network|Reserve Bank|Ribbon Finance|Rich Dad|Rich Dad Poor Dad|Rio de Janeiro|
Riot Blockchain|Riot Platforms|Rocket Pool|Ronin Bridge|San Francisco|Sao Paulo|Satoshi Nakamoto|Saudi Arabia|
Science and Technology|Securities and Exchange Commission|Signature Bank|Silicon Valley|Silk Road|Silvergate Bank|
Sky Mavis|Smart Chain|Smooth Love Potion|Snoop Dogg|South Africa|South America|South Carolina|South Dakota|
South Korea|Sphere 3D|Spider-Man|Sri Lanka|Stable Act|Standard Chartered|Standard Custody|Star Atlas|Star Wars|
Stargate Finance|State Department|State Street|Stellar Lumens|Steve Wozniak|Stranger Things|Supreme Court|The Block|
The Economist|The Graph|The Guardian|The Information|The Merge|The Open Network|The Sandbox|Theta Fuel|Three Arrows|
Three Arrows Capital|Tiger Global|Time Magazine|Times of India|Token 2049|Tornado Cash|Tower Research|Travel Rule|
Treasury Department|True USD|Trump Media|Trust Machines|Trust Wallet|Truth Social|Two Sigma|U.Today|United Kingdom|
United Nations|United States|Wall Street|Wall Street Journal|Washington Post|Wells Fargo|Western Union|White House|
Will Clemente|Will Meade|Will Smith|Wisdom Tree|World Bank|World Coin|World Cup|World Economic Forum|World Mobile|
Worldwide Asset Exchange|Yahoo Finance|Yuga Labs
"""
PHRASES = tuple(_PHRASES.replace("\n", "").split("|"))

# Kinds of institution: beside a name they are a part of it.
_INSTITUTIONS = """
bank exchange network protocol chain capital labs ventures foundation finance financial group digital fund coin token
university wallet pay trust reserve commission department ministry authority agency association institute research
securities investments holdings partners technologies technology systems solutions studios games bridge swap dao
summit conference week journal times news magazine media daily post report review club league cup stadium arena inc
llc ltd corp plc ag sa gmbh co inu punks apes kingdom republic states islands city house street express consulting
management intelligence province war invasion mail world mining miners airlines motors foods energy pharma therapeutics
bancorp trading theatre hospital college bureau council committee court
"""
INSTITUTIONS = frozenset(_INSTITUTIONS.split())
COMPANIES = frozenset(("inc", "llc", "ltd", "corp", "plc", "co", "gmbh", "ag", "associates"))

# Words that begin the name of a place: before a name they are a part of it.
PLACES = frozenset(("south", "north", "east", "west", "santa", "saint", "san", "fort", "port", "mount", "lake"))

# Before a name.
_TITLES = "mr mrs ms miss dr prof sir lord lady judge justice senator sen rep president chancellor"
TITLES = frozenset(_TITLES.split())

# Words between names, and what is said of a name: in a sentence without capitals these are no part of one.
_FUNCTION_WORDS = """
a about after against all amid an and are as at be been before being but by can could did do does down for from
get gets give gives had has have how if in into is it its just may might more most must not of off on only or our out
over per said say says sees should since so still such than that the their then there they this to under until up via
was we were what when which while who why will with would yet you your warns warned tells told asks asked thinks calls
called adds added wants wanted expects expected claims claimed joins joined buys bought sells sold launches launched
announces announced plans planned leads led predicts predicted reveals revealed explains explained believes argues
"""
FUNCTION_WORDS = frozenset(_FUNCTION_WORDS.split())

# Words in capitals or with capitals inside that are no name. All others like them are taken for a ticker or a name.
_ACRONYMS = """
AI AMA AML APR APY API APIs ASIC ASICs ATH ATHs ATM ATMs AR BTFD B2B CBDC CBDCs CEO CEOs CEX CEXs CFO COO CPI CTO CeFi
DApp DApps dApp dApps DAO DAOs DCA DEX DEXs DEXes DIY DeFi DYOR EDM ESG ETF ETFs ETN ETNs ETP ETPs EV EVs EVM FAQ FAQs
FDV FOMO FUD GDP GPU GPUs GM GameFi HFT HODL HODLs HODLers HR HQ ICO ICOs ID IDs IDO IDOs IEO IPO IPOs IRL IT KOL KYC
L1 L2 L1s L2s LP LPs M2E MACD MEV MMO NFT NFTs NGMI OTC P2E P2P PC PFP PFPs PoS PoW PR Q&A QE QR QT R&D ROI RPG RSI
RWA RWAs SMA EMA SPAC SPACs SocialFi SWOT TA TPS TV TVL TVs TX UX UTXO VC VCs VIP VR WAGMI Web2 Web3 XR ZK zk
"""
ACRONYMS = frozenset(_ACRONYMS.split())

# Names that ordinary words stand for in small letters too.
NAMES_OF_COMMON_WORDS = frozenset(
    ("tether", "ripple", "ether", "halving", "halvings", "halvening", "fed", "ordinals", "inscriptions", "lightning")
)
