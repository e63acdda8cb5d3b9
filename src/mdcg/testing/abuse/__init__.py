"""A campaign against mdcg, of named parts that anyone can repeat: `python -m mdcg.testing.abuse`.

Processes are killed, files damaged, commands and recipes drawn at random, images and archives made to hurt, disks
filled. Whatever is done, a command does what was asked, or says in one sentence why not; results keep their bits, and
nothing of others is touched.
"""
