import argparse

parser = argparse.ArgumentParser()
parser.add_argument("data", help="a file")
parser.add_argument("--lr", type=float, default=0.1)
parser.add_argument("--model", required=True)
