namespace hyena {}
