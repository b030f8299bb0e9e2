import argparse

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=1e-3, help="learning rate")
parser.add_argument("--batch-size", type=int, default=32)
parser.add_argument("--optimizer", choices=["adam", "sgd"], default="adam")
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--output_dir", default="out")
parser.add_argument("--verbose", action="store_true")
