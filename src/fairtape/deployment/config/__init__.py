"""The configuration of a deployment, as plain values.

- `description`: the deployment file, read and checked
- `digest`: whether two nodes have read the same file
- `process_names`: names of the processes of a deployment
- `keys`: the key files of nodes
- `capacity`: how many sites this machine can run
"""
