"""Pure rules about what is kept, for how long, and what is deleted when there is no room. Figures and the clock are passed in.

Nothing here touches a disk. The engine and its worker ask; the supervisor's `coordinator` decides between cores.
"""
