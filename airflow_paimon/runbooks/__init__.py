"""What the DAGs of ``airflow_paimon.dags`` are made of besides operators: their forms' checks, reports and advice."""
