"""Questions that look alike: forty that differ in a word which changes the answer, each with a true paraphrase.

Written for the purpose, before anything was tuned to them.
"""

from typing import Final, NamedTuple


class Pair(NamedTuple):
    """A question, one that must not get its answer, and one that may."""

    kind: str
    asked: str
    different: str
    paraphrase: str


PAIRS: Final[tuple[Pair, ...]] = (
    # Negation
    Pair("negation", "Is aspirin safe for dogs?", "Is aspirin not safe for dogs?", "Can dogs safely take aspirin?"),
    Pair(
        "negation",
        "Which fruits should I eat while on a keto diet?",
        "Which fruits should I never eat while on a keto diet?",
        "What fruits should I eat on a keto diet?",
    ),
    Pair(
        "negation",
        "How do I make pancakes with eggs?",
        "How do I make pancakes without eggs?",
        "How can I make pancakes with eggs?",
    ),
    Pair(
        "negation",
        "Why is my container able to reach the internet?",
        "Why is my container unable to reach the internet?",
        "Why can my container reach the internet?",
    ),
    Pair(
        "negation",
        "Show me the customers who have placed an order this month.",
        "Show me the customers who haven't placed an order this month.",
        "List the customers who placed an order this month.",
    ),
    Pair(
        "negation",
        "Is it legal to record a phone call in California?",
        "Is it illegal to record a phone call in California?",
        "Is recording a phone call legal in California?",
    ),
    Pair(
        "negation",
        "How do I enable dark mode in Firefox?",
        "How do I disable dark mode in Firefox?",
        "How can I turn on dark mode in Firefox?",
    ),
    Pair(
        "negation",
        "What happens if I pay my taxes late?",
        "What happens if I don't pay my taxes late?",
        "What happens when I pay taxes late?",
    ),
    # Number
    Pair(
        "number",
        "Convert 5 USD to EUR.",
        "Convert 500 USD to EUR.",
        "How much is 5 USD in EUR?",
    ),
    Pair(
        "number",
        "How do I reset the X2 router?",
        "How do I reset the X3 router?",
        "What are the steps to reset the X2 router?",
    ),
    Pair(
        "number",
        "What is 15 percent of 240?",
        "What is 25 percent of 240?",
        "Calculate 15% of 240.",
    ),
    Pair(
        "number",
        "Write a haiku about autumn with three lines.",
        "Write a haiku about autumn with five lines.",
        "Compose a haiku about autumn with 3 lines.",
    ),
    Pair(
        "number",
        "Who won the World Cup in 2014?",
        "Who won the World Cup in 2018?",
        "Which team won the World Cup in 2014?",
    ),
    Pair(
        "number",
        "What changed in Python 3.11?",
        "What changed in Python 3.12?",
        "What are the changes in Python 3.11?",
    ),
    Pair(
        "number",
        "How many calories are in 2 eggs?",
        "How many calories are in 3 eggs?",
        "How many calories do two eggs have?",
    ),
    Pair(
        "number",
        "Who was the 16th president of the United States?",
        "Who was the 26th president of the United States?",
        "Name the 16th president of the United States.",
    ),
    # Unit
    Pair("unit", "How long is 10 miles in meters?", "How long is 10 yards in meters?", "What is 10 miles in meters?"),
    Pair(
        "unit",
        "What is the boiling point of ethanol in Celsius?",
        "What is the boiling point of ethanol in Fahrenheit?",
        "At what temperature in Celsius does ethanol boil?",
    ),
    Pair(
        "unit",
        "Is 20 mg of melatonin too much?",
        "Is 20 g of melatonin too much?",
        "Is 20 milligrams of melatonin too much?",
    ),
    Pair(
        "unit",
        "How much does a terabyte weigh in kilograms of hard drives?",
        "How much does a terabyte weigh in pounds of hard drives?",
        "In kilograms of hard drives, how much does a terabyte weigh?",
    ),
    Pair(
        "unit",
        "Set a timer for 30 minutes.",
        "Set a timer for 30 seconds.",
        "Please set a 30 minute timer.",
    ),
    Pair(
        "unit",
        "How tall is Mount Everest in feet?",
        "How tall is Mount Everest in meters?",
        "What is the height of Mount Everest in feet?",
    ),
    Pair(
        "unit",
        "How many cups of flour do I need for a loaf of bread?",
        "How many grams of flour do I need for a loaf of bread?",
        "How many cups of flour are needed for one loaf of bread?",
    ),
    Pair(
        "unit",
        "What is the average salary of a nurse per month?",
        "What is the average salary of a nurse per year?",
        "How much does a nurse earn per month on average?",
    ),
    # Entity
    Pair(
        "entity",
        "What is the capital of France?",
        "What is the capital of Germany?",
        "Which city is the capital of France?",
    ),
    Pair(
        "entity",
        "How do I sort a list in Python?",
        "How do I sort a list in JavaScript?",
        "What is the way to sort a list in Python?",
    ),
    Pair(
        "entity",
        "Find flights from Paris to London.",
        "Find flights from London to Paris.",
        "Show me flights from Paris to London.",
    ),
    Pair(
        "entity",
        "what is the population of norway",
        "what is the population of sweden",
        "how many people live in norway",
    ),
    Pair(
        "entity",
        "When was Albert Einstein born?",
        "When was Isaac Newton born?",
        "What is Albert Einstein's date of birth?",
    ),
    Pair(
        "entity",
        "How do I install nginx on Ubuntu?",
        "How do I install nginx on Fedora?",
        "How can I install nginx on Ubuntu?",
    ),
    Pair(
        "entity",
        "Explain the function parse_header in http.py.",
        "Explain the function parse_footer in http.py.",
        "What does the function parse_header in http.py do?",
    ),
    Pair(
        "entity",
        "Can I take ibuprofen after drinking coffee?",
        "Can I take paracetamol after drinking coffee?",
        "Is it okay to take ibuprofen after drinking coffee?",
    ),
    # Language
    Pair(
        "language",
        "What is the meaning of life?",
        "Quel est le sens de la vie ?",
        "What's the meaning of life?",
    ),
    Pair(
        "language",
        "How do I cook rice?",
        "Wie koche ich Reis?",
        "How can I cook rice?",
    ),
    Pair(
        "language",
        "Translate 'good morning' into Spanish.",
        "Translate 'good morning' into Italian.",
        "How do you say 'good morning' in Spanish?",
    ),
    Pair(
        "language",
        "What is the best time to visit Japan?",
        "¿Cuál es la mejor época para visitar Japón?",
        "When is the best time to visit Japan?",
    ),
    Pair(
        "language",
        "Where is the nearest pharmacy?",
        "Dove si trova la farmacia più vicina?",
        "Where can I find the nearest pharmacy?",
    ),
    Pair(
        "language",
        "Summarize the plot of Hamlet in English.",
        "Summarize the plot of Hamlet in German.",
        "Give me a summary of the plot of Hamlet in English.",
    ),
    Pair(
        "language",
        "How old is the universe?",
        "Сколько лет Вселенной?",
        "What is the age of the universe?",
    ),
    Pair(
        "language",
        "What are the symptoms of the flu?",
        "インフルエンザの症状は何ですか?",
        "Which symptoms does the flu have?",
    ),
)
