from oaxe.commands.app import run

if __name__ == "__main__":
    run()
