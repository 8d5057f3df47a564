"""The edge: the HTTP interfaces of app servers, which append commands to the log and answer.

serve.py (gunicorn workers) ─▶ interfaces.py ─▶ v2/  android/  ios/  (one folder for each generation)
                                                   └─▶ core/ (what they share)
openapi/: the published documents
"""
