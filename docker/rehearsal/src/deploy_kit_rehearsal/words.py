"""The text that every rehearsal target speaks: 44 sentences of four words, all 176 words different, said in a
circle.

All words differ, so that the next word follows from the current one alone.
"""

# ruff: noqa: SIM905  (44 words on a few lines, not on 44)

NAMES = (
    "Ada Boris Clara Dmitri Elena Felix Greta Hugo Irene Jonas Kira Leon Marta Nils Olga Pablo Quinn Rosa "
    "Stefan Tilda Ulrich Vera Walter Xenia Yusuf Zelda Amir Bianca Conrad Dora Emil Fiona Gustav Hanna "
    "Igor Judith Klaus Lydia Mikael Nora Oscar Petra Rainer Sonja"
).split()

VERBS = (
    "builds carries draws eats finds grows hides invents judges keeps likes makes names opens paints "
    "quotes repairs sells tests unpacks visits washes explains yields zips admires borrows cleans designs "
    "examines follows gathers hears inspects joins knits lends mends notices orders polishes remembers "
    "sketches teaches"
).split()

ADJECTIVES = (
    "quiet round silver tall useful velvet warm yellow ancient bright careful deep early famous gentle "
    "hollow iron jolly kind long modest narrow open pale quick rare simple tiny upright vivid wooden "
    "young amber blue curious distant eager foreign golden heavy idle lively modern northern"
).split()

NOUNS = (
    "bridges candles drums engines flags gardens hammers islands jars kettles ladders mirrors needles "
    "ovens pianos quilts ropes stairs tables umbrellas violins windows anchors yards baskets clocks doors "
    "envelopes fountains gloves harbors instruments jackets kites lanterns maps notebooks oranges pencils "
    "queens rivers stones towers urns"
).split()

SENTENCES = tuple(zip(NAMES, VERBS, ADJECTIVES, NOUNS, strict=True))
WORDS_A_SENTENCE = 4

# The circle as it is written: every word with the space before it, the full stop part of the last word.
CIRCLE = tuple(
    word
    for name, verb, adjective, noun in SENTENCES
    for word in (f" {name}", f" {verb}", f" {adjective}", f" {noun}.")
)
