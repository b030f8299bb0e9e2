for bs in 16 32; do
  if [ $bs -gt 16 ]; then echo big; fi
  sbatch -p long --time=1-00:00:00 job.sh $bs
  python after.py
done
