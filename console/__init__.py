"""The console: the web page of operators and teams, and its calls for programs (`/console/v1`).

    app.py ─▶ routes.py (pages) and calls.py (calls), each with the access that it needs
      pushes  send  devices  apps  people  audit  statistics  tasks  account  overview     one folder for each feature:
          pages.py, calls.py (both thin) ─▶ actions.py (what is done)    words.py (in the reader's language)   *.html
      shell/   what every feature uses: access, sessions, rendering, languages     oidc/   log-in by a provider

It calls the roles as any other client does, and writes commands as the edge does.
"""
