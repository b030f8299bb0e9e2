for task in walk run; do
  python agent.py -m task=$task algo=ppo,sac
done
