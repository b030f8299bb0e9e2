rates=(0.1 0.01)
sizes=(
  8
  16
)
for lr in "${rates[@]}"
do
  for i in $(seq 0 1); do
    python run.py --lr=$lr --size=${sizes[$i]} --steps=$((1000 / (i + 1))) --tag="{x}"
  done
done
