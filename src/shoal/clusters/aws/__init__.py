"""AWS as the provider of a cluster: one CloudFormation stack each.

`file`, `parameters`, `cost` and `policy` decide, and ask nobody; boto3 is imported
when AWS is asked, and never before.
"""
