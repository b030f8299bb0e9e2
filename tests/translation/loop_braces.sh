export TOKENIZERS_PARALLELISM=false
cd .
source venv/bin/activate
for fold in {1..5}; do for m in model-{a,b}; do
    torchrun --nproc_per_node=2 cv.py --fold=$fold --model=$m --out=out/$(date +%s) | tee log
done; done
