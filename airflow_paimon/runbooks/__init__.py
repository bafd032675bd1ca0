"""What the DAGs in ``dags/`` are made of, besides the operators: their forms' checks, reports and advice."""
