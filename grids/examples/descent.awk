# A program in another language: the parabola of descent.py, without noise.
#
#     awk -v rate=0.3 -v start=5 -v out=metrics.jsonl -f descent.awk

BEGIN {
    x = start
    for (step = 0; step < 30; step++) {
        printf "{\"step\": %d, \"height\": %.9g}\n", step, x * x > out
        x -= rate * 2 * x
    }
    printf "lowest point at %.3f\n", x
}
