"""The words that `near_set.py` makes instructions of. What ends in HELD is used only by the held-out set."""

FIRST = "Anna Bruno Carla Dmitri Elena Farid Greta Hugo Ines Jonas Katya Leon Maya Nils Olga Pedro Rosa Samir Tessa Viktor".split()
LAST = "Adler Brandt Castillo Dumont Eriksen Fontana Grimaldi Haas Ivanov Jansen Keller Lindqvist Moreau Novak Okafor Petrov".split()
CITIES = "Oslo Lyon Bergen Porto Graz Turin Ghent Malmo Seville Krakow Leeds Nantes Basel Tampere Osaka Quito Lagos Boston".split()
HOSTS = ["example.org", "example.com", "shop.example.net", "api.example.org", "mail.example.com", "docs.example.net"]
STEMS = (
    "sales stock labels travel meeting recipe invoice budget report sensor orders refunds survey garden weather playlist lesson "
    "patient roster ledger harvest chart backup config schema router parser metrics archive catalog draft poem novel essay menu"
).split()
ADJECTIVES = "urgent weekly final old northern blue quarterly private shared broken second-hand early late empty hidden".split()
DIRS = ["/home/user/work/data", "/home/user/work/src", "/home/user/work/notes", "/home/user/work/repo", "/srv/files", "/var/log",
        "/tmp/export", "/home/user/work/books", "/opt/shop"]
ENDINGS = "csv txt md json py js xlsx ini log yaml".split()
MONTHS = "January February March April May June July August September October November December".split()

# Three ways to say each task: the base, one for development, one held out.
TASKS = [
    ("List the files in {dir} that are larger than {n} KB.", "Which files in {dir} are bigger than {n} KB?", "Show every file over {n} KB that {dir} holds."),
    ("Read the file {path} and summarise its content.", "Give me a summary of what {path} contains.", "Open {path} and sum up what is written there."),
    ("Count the lines in {path} that contain {q!}.", "How many lines of {path} have {q!} in them?", "Tell me the number of lines in {path} where {q!} occurs."),
    ("Replace {q!} with {q2!} in the file {path}.", "In {path}, change every {q!} to {q2!}.", "Swap {q!} for {q2!} throughout {path}."),
    ("Move {path} to {path2}.", "Please relocate the file {path} to {path2}.", "Take {path} and put it at {path2}."),
    ("Create a new file at {path} with the content {q!}.", "Make a file {path} that contains {q!}.", "Write {q!} into a new file called {path}."),
    ("Delete all rows of {path} where the column {ident} is below {n}.", "Remove the rows in {path} whose {ident} is less than {n}.", "Drop every row from {path} that has {ident} under {n}."),
    ("What is the average of the column {ident} in {path}?", "Compute the mean of {ident} in {path}.", "Tell me the mean value of the {ident} column of {path}."),
    ("Show the last {n} commits that touched {path}.", "Which were the {n} most recent commits that changed {path}?", "List the latest {n} commits affecting {path}."),
    ("Create a branch named {ident} in the repository {dir}.", "Start a new branch {ident} in {dir}.", "In the {dir} repository, make a branch called {ident}."),
    ("Who made changes to {path} since {date}?", "Which people have changed {path} after {date}?", "Name everyone who edited {path} from {date} on."),
    ("Find all functions in {path} that call {ident}.", "Which functions of {path} make a call to {ident}?", "Search {path} for every function calling {ident}."),
    ("Rename the function {ident} in {path} to {q!}.", "Give the function {ident} of {path} the new name {q!}.", "In {path}, the function {ident} should be called {q!} from now on."),
    ("What will the weather be like in {city} on {date}?", "Give me the forecast for {city} on {date}.", "How will the weather in {city} be on {date}?"),
    ("Book a table for {n} people in {city} on {date}.", "Reserve a table in {city} for {n} guests on {date}.", "I would like a table for {n} persons in {city} on {date}."),
    ("Find trains from {city} to {city2} on {date}.", "Which trains go from {city} to {city2} on {date}?", "Look up train connections from {city} to {city2} on {date}."),
    ("Send an e-mail to {email} with the subject {q!}.", "Write to {email} with {q!} as the subject.", "Mail {email}; the subject line is {q!}."),
    ("Search my mailbox for messages from {email} sent after {date}.", "Find all mail that {email} sent me since {date}.", "Which messages did I get from {email} after {date}?"),
    ("Invite {name} to the meeting on {date} at {n} o'clock.", "Add {name} to the meeting at {n} o'clock on {date}.", "Ask {name} to join the meeting on {date}, {n} o'clock."),
    ("What appointments does {name} have on {date}?", "Show the appointments of {name} for {date}.", "Tell me what is in the calendar of {name} on {date}."),
    ("Fetch {url} and list all headings of the page.", "Get the page {url} and give me its headings.", "Which headings are on the page at {url}?"),
    ("Take a screenshot of {url} with a width of {n} pixels.", "Capture {url} as an image {n} pixels wide.", "Make a picture of the page {url}, {n} pixels in width."),
    ("Check whether {url} answers within {n} seconds.", "Does {url} respond in less than {n} seconds?", "Test if a reply from {url} comes inside {n} seconds."),
    ("Calculate the sum of {n} and {m}.", "What do you get if you add {n} and {m}?", "Work out {n} plus {m}."),
    ("What is {n} percent of {m}?", "Compute {n} percent of {m}.", "How much is {n} percent out of {m}?"),
    ("Convert {n} kilometres to miles and round to {m} digits.", "How many miles are {n} kilometres, rounded to {m} digits?", "Turn {n} kilometres into miles with {m} digits."),
    ("Add a product {q!} with a price of {n} cents to the database.", "Insert {q!} at {n} cents into the product table of the database.", "Put a new product called {q!} into the database; it costs {n} cents."),
    ("Which orders in the table {ident} were placed by {name}?", "Show all orders of {name} from the table {ident}.", "List what {name} has ordered according to the table {ident}."),
    ("Update the stock of {q!} in the store in {city} to {n}.", "Set the stock of {q!} to {n} for the {city} store.", "The store in {city} now has {n} of {q!} in stock; please record that."),
    ("Create a table {ident} with the columns {q!} and {q2!}.", "Make a table called {ident} that has columns {q!} and {q2!}.", "Set up the table {ident}; its columns are {q!} and {q2!}."),
    ("Delete the relation {q!} between {name} and {city} from the graph.", "Remove {q!} as a relation of {name} and {city} in the graph.", "The graph should no longer have the relation {q!} between {name} and {city}."),
    ("Add the observation {q!} to the entity {name}.", "Note the observation {q!} for {name}.", "Attach {q!} as an observation to the entity of {name}."),
    ("Set the timeout of {ident} to {n} seconds.", "Change the {ident} timeout to {n} seconds.", "Let {ident} time out after {n} seconds."),
    ("Restart the service {ident} and show the last {n} lines of its log.", "Start {ident} again, then print {n} lines from the end of its log.", "Bring up the service {ident} once more and give me the final {n} log lines."),
    ("Merge the cells from row {n} to row {m} in the sheet of {path}.", "In the sheet of {path}, join the cells of rows {n} to {m}.", "Rows {n} to {m} of the sheet in {path} should have merged cells."),
    ("Insert {n} empty columns before column {m} in {path}.", "Put {n} blank columns in front of column {m} in {path}.", "Ahead of column {m} in {path}, add {n} columns with nothing in them."),
    ("Play the song {q!} by {name} at volume {n}.", "Start {q!} by {name} with the volume at {n}.", "Put on {q!} from {name}, volume {n}."),
    ("Remind me on {date} to call {name}.", "Set a reminder for {date}: call {name}.", "On {date} I have to phone {name}; remind me of it."),
    ("Translate the text {q!} for our customer in {city}.", "Give me a translation of {q!} for the customer in {city}.", "Our customer in {city} needs {q!} translated."),
    ("Write a note titled {q!} for {name}.", "Make a note for {name} with the title {q!}.", "Leave {name} a note headed {q!}."),
    ("Compare {path} with {path2} and list the differences.", "What are the differences between {path} and {path2}?", "Show how {path} differs from {path2}."),
    ("Set the header colour of {path} to {q!}.", "Make the header of {path} {q!}.", "Use {q!} as the colour for the header in {path}."),
    ("Welche Dateien in {dir} sind größer als {n} KB?", "Zeige mir die Dateien in {dir}, die größer als {n} KB sind.", "Liste alle Dateien über {n} KB in {dir} auf."),
    ("Schicke eine Nachricht an {email} mit dem Betreff {q!}.", "Sende an {email} eine Nachricht, Betreff {q!}.", "Bitte schreibe {email} eine Nachricht mit {q!} als Betreff."),
    ("Wie wird das Wetter am {date} in {city}?", "Wie ist das Wetter in {city} am {date}?", "Sag mir das Wetter am {date} für {city}."),
    ("¿Cuántas líneas del archivo {path} contienen {q!}?", "Dime cuántas líneas de {path} contienen {q!}.", "Cuenta las líneas del archivo {path} donde aparece {q!}."),
    ("Reserva una mesa para {n} personas en {city} el {date}.", "Quiero reservar una mesa en {city} para {n} personas el {date}.", "Haz una reserva para {n} personas en {city}, el {date}."),
    ("Affiche les {n} dernières lignes du fichier {path}.", "Montre-moi les {n} dernières lignes de {path}.", "Quelles sont les {n} dernières lignes du fichier {path} ?"),
    ("Quels trains vont de {city} à {city2} le {date} ?", "Donne-moi les trains de {city} à {city2} le {date}.", "Trouve un train de {city} vers {city2} pour le {date}."),
    ("请列出{dir}目录中大于{n}KB的文件。", "{dir}目录中有哪些大于{n}KB的文件？", "请告诉我{dir}目录里哪些文件大于{n}KB。"),
    ("请把文件{path}中的“{q}”替换为“{q2}”。", "在文件{path}中，请将“{q}”替换成“{q2}”。", "把{path}文件里的“{q}”都替换为“{q2}”。"),
    ("{path}の最後の{n}行を表示してください。", "{path}の最後の{n}行を見せてください。", "ファイル{path}の最後の{n}行を表示して。"),
]
# A quoted value is written with its marks.
TASKS = [tuple(f.replace("{q!}", "'{q}'").replace("{q2!}", "'{q2}'") for f in t) for t in TASKS]


def language(task):
    """Whether the words and frames below fit: `en`, or another."""
    marks = ("Welche ", "Schicke ", "Wie ", "¿", "Reserva ", "Affiche ", "Quels ")
    return "other" if task[0].startswith(marks) or any(ord(c) > 0x3000 for c in task[0]) else "en"


OPENINGS_BASE = [
    "I need to {}.", "I have to {}.", "I want to {}.", "I'm trying to {}.", "I am working on a project and have to {}.", "My team asked me to {}.",
]
REASONS = [
    "prepare for the next meeting", "review the figures for my boss", "make sure everything is up to date", "clean up the project",
    "check the latest changes before the release", "finish the report for my class", "keep my startup's data in order", "plan the trip",
    "answer a question of a customer", "understand what happened last week", "get the shop ready for the season", "write an essay",
    "find out what went wrong", "help a friend with the move", "sort out the paperwork", "set up the new office",
]
OPENINGS = ["I could use some help.", "There is something I need.", "This is for my work.", "I'm in a hurry.", "I'm looking into something."]
OPENINGS_HELD = ["Here is a small job for you.", "I'd be glad of your support.", "It concerns my current task.", "We're short of time today."]
FRAMES = ["Could you please help? {}", "Please do this for me: {}", "{} Thanks!", "{} Please be quick.", "Can you do the following? {}"]
FRAMES_HELD = ["Would you be so kind: {}", "Next task. {}", "{} Many thanks in advance.", "{} That would be great.", "Hello, {}"]
FILLERS = "now also just really simply kindly quickly actually then again today too".split()

SYNONYMS = {
    "list": ["show", "display"], "show": ["list", "display"], "find": ["locate", "search"], "create": ["make", "add"], "make": ["create"],
    "delete": ["remove", "erase"], "remove": ["delete"], "calculate": ["compute"], "compute": ["calculate"], "send": ["write", "mail"],
    "count": ["total"], "replace": ["substitute", "change"], "move": ["transfer", "shift"], "read": ["open", "view"], "summarise": ["condense"],
    "content": ["contents", "text"], "larger": ["bigger", "greater"], "bigger": ["larger"], "new": ["fresh"], "average": ["mean"],
    "last": ["latest", "final"], "changes": ["edits"], "find,": ["locate,"], "need": ["want"], "want": ["need", "wish"], "trying": ["aiming"],
    "people": ["persons", "guests"], "check": ["verify", "test"], "meeting": ["call", "session"], "fetch": ["get", "load"], "price": ["cost"],
    "page": ["site"], "add": ["insert", "put"], "insert": ["add"], "update": ["set", "change"], "set": ["put", "change"], "rename": ["change"],
    "table": ["grid"], "note": ["memo"], "write": ["draft"], "service": ["process"], "restart": ["reboot"], "compare": ["contrast"],
    "differences": ["changes"], "prepare": ["ready"], "customer": ["client"], "report": ["paper"], "project": ["work"], "boss": ["manager"],
    "figures": ["numbers"], "subject": ["title"], "messages": ["mails"], "book": ["reserve"], "play": ["start"], "song": ["track"],
    "convert": ["change"], "round": ["trim"], "invite": ["add"], "database": ["base"], "orders": ["purchases"], "lines": ["rows"],
}
SYNONYMS_HELD = {
    "list": ["enumerate", "print"], "show": ["print", "present"], "find": ["discover", "look for"], "create": ["set up", "build"],
    "delete": ["drop", "get rid of"], "remove": ["drop"], "calculate": ["work out"], "compute": ["determine"], "send": ["dispatch"],
    "count": ["tally"], "replace": ["exchange", "swap"], "move": ["relocate"], "read": ["look at"], "summarise": ["recap", "outline"],
    "content": ["body"], "larger": ["heavier"], "new": ["further"], "average": ["typical"], "last": ["most recent"], "changes": ["modifications"],
    "need": ["ought", "require"], "want": ["would like"], "trying": ["attempting"], "people": ["visitors"], "check": ["see", "examine"],
    "meeting": ["appointment"], "fetch": ["download", "retrieve"], "price": ["value"], "page": ["document"], "add": ["append", "include"],
    "insert": ["place"], "update": ["adjust", "correct"], "set": ["fix"], "rename": ["relabel"], "table": ["relation"], "note": ["remark"],
    "write": ["compose"], "service": ["daemon"], "restart": ["relaunch"], "compare": ["match"], "differences": ["deviations"],
    "prepare": ["gear up"], "customer": ["buyer"], "report": ["write-up"], "project": ["job"], "boss": ["supervisor"], "figures": ["data"],
    "subject": ["heading"], "messages": ["letters"], "book": ["order"], "song": ["tune"], "convert": ["transform"], "invite": ["bring"],
    "orders": ["requests"], "lines": ["entries"], "functions": ["routines"], "file": ["document"], "files": ["documents"], "column": ["field"],
}

# Questions without values: three ways to ask, five parts.
TOPICS = (
    "How do I {a} {b} for {c} when {d}, and {e}?",
    "When {d}, how can I {a} {b} for {c}, and {e}?",
    "What is the way to {a} {b} for {c} if {d}? And {e}?",
)
PARTS = (
    "bake peel paint fold repair store pack label photograph polish weigh ship borrow sharpen water trim wash knit measure heat cool stack "
    "carry draw teach tune rent insure sell clean".split(),
    [f"{a} {b}" for a in "wooden green heavy cheap ripe antique tiny leather frozen round".split()
     for b in "bread bicycles lamps apples violins shoes tents candles mirrors baskets".split()],
    [f"{a} {b}" for a in "elderly young foreign busy hungry curious nervous wealthy".split()
     for b in "neighbours nurses tourists farmers pupils cousins drivers musicians".split()],
    [f"{a} {b}" for a in ["it rains", "power fails", "nobody helps", "prices rise", "time is short", "space is scarce", "winter comes", "rules change"]
     for b in ["at night", "in the village", "on holidays", "near the coast", "without notice", "all week", "once more", "after lunch"]],
    [f"{a} {b}" for a in ["which tools", "what permits", "how many hands", "which colours", "what budget", "whose advice", "which season", "what clothes"]
     for b in ["does that take", "would experts pick", "are usual abroad", "suit beginners", "did grandparents use", "cause least trouble", "count as safe", "work indoors"]],
)
