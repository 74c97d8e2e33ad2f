"""The job that tests of heads and stores run: two workers that print each row of some files."""

JOB = """
apiVersion: primus/v1
name: rows
roles:
  worker:
    replicas: 2
    command: 'while read -r line; do echo "$line"; sleep 0.04; done'
    data: lines
    feed: stdin
    resources: {{cpu: 1, memory: 64Mi}}
data:
  lines: {{sources: [{{files: "{folder}/input/*"}}], format: text, split: {{bytes: 128B}}}}
"""
