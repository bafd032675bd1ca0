"""The page *Paimon* in Airflow's UI: an Airflow plugin that shows tables and changes nothing."""
