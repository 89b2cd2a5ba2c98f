"""Who starts processes: this machine today, Ray and Spark by the same verbs."""
