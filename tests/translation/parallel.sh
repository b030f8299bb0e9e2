parallel -j 4 python eval.py --ckpt {1} --temp={2} ::: a b ::: 0.0 0.7 1.0
