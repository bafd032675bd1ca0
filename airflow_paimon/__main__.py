"""``python -m airflow_paimon tables --warehouse W``; ``--help`` lists the look-ups."""

from airflow_paimon.cli.main import main

if __name__ == "__main__":
    main()
