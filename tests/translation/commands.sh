python a.py --x 1
python a.py --x 2 --fast
python b.py
