"""What is kept, how long, and what goes when there is no room: pure rules over figures and a clock that is passed in.

Nothing here touches a disk. The engine and its worker ask; the supervisor's `coordinator` decides between cores.
"""
