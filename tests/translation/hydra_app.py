import hydra


@hydra.main(config_path=".", config_name="hydra_config")
def main(config):
    print(config)
